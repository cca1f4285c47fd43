"""``python -m aioreactor`` is the same as the ``aioreactor`` command."""

from aioreactor.cli.__main__ import main

if __name__ == "__main__":
    main()
