"""One self-contained HTML page: the verdict first, then all it rests on."""
