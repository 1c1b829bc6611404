"""`python -m halofeed` and the console script: what must be in place comes first, then the command line."""

import os


def run() -> None:
    """Run the command that this process was started with, and end it."""
    try:
        from halofeed.system import signals

        signals.listen()
    except KeyboardInterrupt:  # Python raises it until `listen` is done
        os.write(2, b"halofeed: stopped (SIGINT)\n")
        os._exit(130)
    from halofeed.streams import open_closed_streams, watch_output

    open_closed_streams()
    watch_output()
    from halofeed.cli import run_and_exit

    run_and_exit()


if __name__ == "__main__":
    run()
