"""Sandboxes: where code that a policy writes runs without doing harm.

    async with open_sandbox(SandboxConfig()) as sandbox:
        result = await sandbox.exec("print(6 * 7)")

`protocol` says what a sandbox does, `config` which there are, `results` how a call ends,
`supervisor/` how it is done on Linux, `audit` what is written down about it.
"""

from .audit import AuditError as AuditError
from .audit import AuditLog as AuditLog
from .audit import AuditReport as AuditReport
from .audit import audit_run as audit_run
from .audit import audit_to as audit_to
from .audit import verify_log as verify_log
from .config import SandboxConfig as SandboxConfig
from .limits import Limits as Limits
from .opening import open_sandbox as open_sandbox
from .protocol import Guarantees as Guarantees
from .protocol import Program as Program
from .protocol import Sandbox as Sandbox
from .protocol import SandboxError as SandboxError
from .protocol import SandboxFileError as SandboxFileError
from .protocol import SandboxUnavailable as SandboxUnavailable
from .results import Result as Result
from .results import Status as Status
from .results import Usage as Usage
