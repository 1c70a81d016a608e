#!/usr/bin/env python
"""Fine-tune a BERT classifier on your own table: `python run_classify.py --data my.csv`."""

from classify.cli import main

if __name__ == "__main__":
    raise SystemExit(main(program="run_classify.py"))
