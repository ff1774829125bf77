"""What all tests start from."""

import signal


def pytest_configure():
    """Give signals their usual meaning: a shell that runs us in the background, or nohup, has switched some off."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
