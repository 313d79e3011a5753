"""`python -m harness` is `hgemm`."""

from harness.cli import main

main()
