"""Parts of `heedful evaluate`: by the length of sources, of a language model, of an encoder."""
