"""Inference engines: the only packages that import vLLM or transformers models."""
