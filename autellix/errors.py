"""Every error that Autellix raises on purpose.

    AutellixError
    ├── UsageError        the command line, a target or an input line is wrong (exit code 2)
    │   ├── TargetError   the script, module or graph to run cannot be used
    │   └── InputError    an input document or line cannot be read
    ├── SettingsError     an option or environment variable has an impossible value
    ├── EngineError       the engine cannot do what was asked
    │   ├── EngineStartError    it did not come up
    │   ├── EngineStoppedError  it has stopped, or was stopped, under a call
    │   │   └── ReplicaLostError    a replica's process ended by itself
    │   ├── KvMoveError         KV blocks cannot be moved as asked; nothing was moved
    │   └── CallError           one call was refused or failed; the engine goes on
    │       └── CallRefusedError    the engine does not take it as it is asked for
    │           └── ContextLengthError  the prompt does not fit the model's context
    ├── ModelError        the model cannot be found or prepared
    ├── VersionError      an installed library is not one this release was tested with
    ├── TraceError        a trace file cannot be read or written
    └── JournalError      the journal of threads cannot be used

A message names the cause and the mend in one paragraph: it is shown without a traceback.
"""

from __future__ import annotations


class AutellixError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is one paragraph for people."""


class UsageError(AutellixError):
    """The command line asks for something that cannot be."""


class TargetError(UsageError):
    """The script, module or graph to run cannot be used."""


class InputError(UsageError):
    """An input document or line cannot be read."""


class SettingsError(AutellixError):
    """An option or environment variable has an impossible value."""


class EngineError(AutellixError):
    """The engine cannot do what was asked."""


class EngineStartError(EngineError):
    """The engine did not come up."""


class EngineStoppedError(EngineError):
    """The engine has stopped, or was stopped, while a call needed it."""


class KvMoveError(EngineError):
    """KV blocks cannot be moved as asked; nothing was moved."""


class ReplicaLostError(EngineStoppedError):
    """A replica's process has ended by itself, or was killed, under a call."""


class CallError(EngineError):
    """One call was refused or failed; the engine goes on."""


class CallRefusedError(CallError):
    """The engine does not take a call as it is asked for; it would refuse it again."""


class ContextLengthError(CallRefusedError):
    """The prompt does not fit the model's context."""


class ModelError(AutellixError):
    """The model cannot be found or prepared."""


class VersionError(AutellixError):
    """An installed library is not one this release was tested with."""


class TraceError(AutellixError):
    """A trace file cannot be read or written."""


class JournalError(AutellixError):
    """The journal of threads cannot be used."""
