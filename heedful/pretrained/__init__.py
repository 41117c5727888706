"""Small trained models that come with the package, each a folder with its card."""
