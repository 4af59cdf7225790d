"""Made-up models: read back by our reader and by the gguf package, which we did not write."""
