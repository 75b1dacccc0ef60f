"""How a device call fails, sorted by what the caller should do about it.

DeviceError
  Transient         try again later
  Unsupported       this device cannot do that, now or ever
  NotPermitted      no right to do it (CAP_SYS_ADMIN); reading may still work
  Gone              the GPU fell off the bus, or the driver was unloaded
"""

from joulecut_wire.errors import JoulecutError


class DeviceError(JoulecutError):
    """A device call failed. `code` is a short stable word for the error counter."""

    def __init__(self, code: str, what: str) -> None:
        self.code = code
        super().__init__(what)


class Transient(DeviceError):
    pass


class Unsupported(DeviceError):
    pass


class NotPermitted(DeviceError):
    pass


class Gone(DeviceError):
    pass
