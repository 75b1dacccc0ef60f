"""Errors of device calls, by what the caller should do about them."""

from joulecut_wire.errors import JoulecutError

UPGRADED = "lib_rm_version_mismatch"  # a code: the driver is not the one that was opened


class DeviceError(JoulecutError):
    """A device call failed. `code` is a short stable word for the error counter."""

    def __init__(self, code: str, what: str) -> None:
        self.code = code
        super().__init__(what)

    def __reduce__(self) -> tuple[type, tuple[str, ...]]:
        return type(self), (self.code, str(self))


class Transient(DeviceError):
    """A busy driver, a call that hung: try again later."""


class Unanswered(Transient):
    """A call that was sent and not answered in time: it may still take effect."""


class Unsupported(DeviceError):
    """This device cannot do that, now or ever."""


class NotPermitted(DeviceError):
    """No right to do it (CAP_SYS_ADMIN); reading may still work."""


class Gone(DeviceError):
    """The GPU fell off the bus, or the driver was unloaded."""
