"""Parts of `heedful evaluate`: scores by source length, of language models and of encoders."""
