"""The arithmetic of `extractor plan`: lengths in, tokens, bytes, hours and room out. No model is loaded here."""
