"""A server of translators and language models over HTTP."""
