"""The models in the box: three small Llamas that are shipped with the package, alone or widened with ballast."""
