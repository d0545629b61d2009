"""The bundled models: three small Llamas in the package, as they are or widened with ballast."""
