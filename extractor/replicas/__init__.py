"""Many engines, one job: replicas on Ray. Nothing outside this folder imports Ray."""
