"""The vLLM engine. `environment` must be prepared before vLLM is imported, hence nothing is imported here."""
