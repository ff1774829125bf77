"""`python -m rankwise`."""

from rankwise.cli import main

if __name__ == "__main__":
    main()
