"""`python -m halofeed` is the command line."""

from halofeed.cli import run_and_exit

if __name__ == "__main__":
    run_and_exit()
