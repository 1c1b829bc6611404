"""Entry point of `python -m halofeed` and of the console script: signal handlers, streams, then the command line."""

import os


def run() -> None:
    """Run the command of this process, and exit."""
    try:
        from halofeed.system import signals

        signals.install_handlers()
    # The handlers print this line later; here the interpreter would print a traceback.
    except KeyboardInterrupt:  # raised by Python's own handler before `install_handlers` returns
        os.write(2, b"halofeed: stopped (SIGINT)\n")
        os._exit(130)
    from halofeed.standard_streams import open_closed_streams, watch_output

    # First of all: a file that is opened before would take the descriptor of a closed stream.
    open_closed_streams()
    watch_output()
    from halofeed.cli import run_and_exit

    run_and_exit()


if __name__ == "__main__":
    run()
