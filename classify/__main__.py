"""`python -m classify` is the console command `classify`."""

from classify.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
