"""Search in compiled loops. numba keeps them in the package's folder, or in the user's cache folder."""
