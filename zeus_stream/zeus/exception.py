"""`ZeusBaseError`: the base of all errors, with Zeus's name."""

from zeus_stream.errors import ZeusStreamError

ZeusBaseError = ZeusStreamError
