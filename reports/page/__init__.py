"""One self-contained HTML page and the files beside it, made of runs and their figures."""
