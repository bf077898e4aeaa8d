"""`python -m excite` is the command line."""

from excite.cli import main

main()
