"""Algorithm 1's extreme value fit: block maxima of slopes, a reverse Weibull, and how far its endpoint is known."""
