"""Runs one command in an AppContainer, on Windows, as `python -I appcontainer_launcher.py PLAN`.

A program of its own, so standard library only. Creates the profile and the grants, starts the guest suspended inside a
job, waits, removes everything and exits with the guest's status.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

ALREADY_EXISTS = 0x800700B7
ATTRIBUTE_SECURITY_CAPABILITIES = 0x00020009
ATTRIBUTE_CHILD_PROCESS_POLICY = 0x0002000E
CHILD_PROCESS_RESTRICTED = 1
CREATE_FLAGS = 0x00000004 | 0x00000400 | 0x00080000 | 0x08000000  # suspended, unicode env, extended info, no window
DACL_SECURITY_INFORMATION = 4
GRANT_ACCESS, REVOKE_ACCESS = 1, 4
INHERIT_TO_CHILDREN = 3
JOB_EXTENDED_LIMITS = 9
JOB_LIMIT_FLAGS = 0x2000 | 0x0008 | 0x0200  # kill on close, active processes, job memory
SE_FILE_OBJECT = 1
START_USES_HANDLES = 0x100


class SidAndAttributes(ctypes.Structure):
    _fields_ = (("sid", ctypes.c_void_p), ("attributes", ctypes.c_uint32))


class SecurityCapabilities(ctypes.Structure):
    _fields_ = (
        ("container", ctypes.c_void_p),
        ("capabilities", ctypes.POINTER(SidAndAttributes)),
        ("count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class Trustee(ctypes.Structure):
    _fields_ = (
        ("multiple", ctypes.c_void_p),
        ("operation", ctypes.c_int),
        ("form", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("name", ctypes.c_void_p),
    )


class ExplicitAccess(ctypes.Structure):
    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("mode", ctypes.c_int),
        ("inheritance", ctypes.c_uint32),
        ("trustee", Trustee),
    )


class StartupInfo(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("reserved", ctypes.c_void_p),
        ("desktop", ctypes.c_void_p),
        ("title", ctypes.c_void_p),
        ("geometry", ctypes.c_uint32 * 7),
        ("flags", ctypes.c_uint32),
        ("show", ctypes.c_uint16),
        ("reserved_size", ctypes.c_uint16),
        ("reserved_bytes", ctypes.c_void_p),
        ("stdin", ctypes.c_void_p),
        ("stdout", ctypes.c_void_p),
        ("stderr", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
    )


class ProcessInformation(ctypes.Structure):
    _fields_ = (
        ("process", ctypes.c_void_p),
        ("thread", ctypes.c_void_p),
        ("process_id", ctypes.c_uint32),
        ("thread_id", ctypes.c_uint32),
    )


class JobLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION with the I/O counters as padding."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("minimum_working_set", ctypes.c_size_t),
        ("maximum_working_set", ctypes.c_size_t),
        ("active_processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority", ctypes.c_uint32),
        ("scheduling", ctypes.c_uint32),
        ("io_counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


class WindowsError(OSError):
    """A step failed; the message names it."""


class Windows:
    """The three system libraries. Turns their errors into exceptions."""

    def __init__(self) -> None:
        load: Any = vars(ctypes)["WinDLL"]
        self.kernel, self.advapi, self.userenv = (
            load(name, use_last_error=True) for name in ("kernel32", "advapi32", "userenv")
        )
        for function in (self.kernel.CreateJobObjectW, self.kernel.GetStdHandle):
            function.restype = ctypes.c_void_p

    def must(self, step: str, succeeded: Any) -> Any:
        if not succeeded:
            raise WindowsError(f"{step} failed with error {vars(ctypes)['get_last_error']()}")
        return succeeded

    def zero(self, step: str, status: int) -> None:
        if status:
            raise WindowsError(f"{step} failed with status {status & 0xFFFFFFFF:#x}")


@contextmanager
def profile_sid(windows: Windows, name: str, capabilities: Any, count: int) -> Iterator[ctypes.c_void_p]:
    """The container's identity; its profile is deleted afterwards."""
    sid = ctypes.c_void_p()
    create = windows.userenv.CreateAppContainerProfile
    status = create(name, name, "Warmcell guest", capabilities, count, ctypes.byref(sid)) & 0xFFFFFFFF
    if status == ALREADY_EXISTS:
        derive = windows.userenv.DeriveAppContainerSidFromAppContainerName
        status = derive(name, ctypes.byref(sid)) & 0xFFFFFFFF
    windows.zero("CreateAppContainerProfile", status)
    try:
        yield sid
    finally:
        windows.userenv.DeleteAppContainerProfile(name)
        windows.advapi.FreeSid(sid)


def set_access(windows: Windows, path: str, sid: ctypes.c_void_p, mask: int, mode: int) -> None:
    """Adds or removes one entry of the path's access list."""
    old, new, descriptor = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    read, write = windows.advapi.GetNamedSecurityInfoW, windows.advapi.SetNamedSecurityInfoW
    windows.zero(
        f"reading the access list of {path}",
        read(
            path,
            SE_FILE_OBJECT,
            DACL_SECURITY_INFORMATION,
            None,
            None,
            ctypes.byref(old),
            None,
            ctypes.byref(descriptor),
        ),
    )
    trustee = Trustee(None, 0, 0, 0, sid.value)
    entry = ExplicitAccess(mask, mode, INHERIT_TO_CHILDREN, trustee)
    try:
        windows.zero("SetEntriesInAcl", windows.advapi.SetEntriesInAclW(1, ctypes.byref(entry), old, ctypes.byref(new)))
        windows.zero(
            f"writing the access list of {path}",
            write(path, SE_FILE_OBJECT, DACL_SECURITY_INFORMATION, None, None, new, None),
        )
    finally:
        windows.kernel.LocalFree(new)
        windows.kernel.LocalFree(descriptor)


@contextmanager
def grant_access(windows: Windows, grant: dict[str, Any], sid: ctypes.c_void_p) -> Iterator[None]:
    set_access(windows, grant["path"], sid, grant["mask"], GRANT_ACCESS)
    try:
        yield
    finally:
        set_access(windows, grant["path"], sid, grant["mask"], REVOKE_ACCESS)


def capability_array(windows: Windows, names: list[str]) -> Any:
    enabled = 4
    array = (SidAndAttributes * max(len(names), 1))()
    for index, name in enumerate(names):
        sid = ctypes.c_void_p()
        windows.must("ConvertStringSidToSid", windows.advapi.ConvertStringSidToSidW(name, ctypes.byref(sid)))
        array[index] = SidAndAttributes(sid.value, enabled)
    return array


def attribute_list(windows: Windows, security: SecurityCapabilities, policy: ctypes.c_uint32 | None) -> Any:
    """The attribute list for CreateProcess: the container, and whether the guest may have children."""
    count, size = 1 if policy is None else 2, ctypes.c_size_t()
    windows.kernel.InitializeProcThreadAttributeList(None, count, 0, ctypes.byref(size))
    memory = ctypes.create_string_buffer(size.value)
    initialise, update = windows.kernel.InitializeProcThreadAttributeList, windows.kernel.UpdateProcThreadAttribute
    windows.must("InitializeProcThreadAttributeList", initialise(memory, count, 0, ctypes.byref(size)))
    for attribute, value in ((ATTRIBUTE_SECURITY_CAPABILITIES, security), (ATTRIBUTE_CHILD_PROCESS_POLICY, policy)):
        if value is not None:
            pointer, length = ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
            done = update(memory, 0, ctypes.c_size_t(attribute), pointer, length, None, None)
            windows.must("UpdateProcThreadAttribute", done)
    return memory


def make_job(windows: Windows, plan: dict[str, Any]) -> ctypes.c_void_p:
    """A job that kills everything in it when this process ends."""
    job = ctypes.c_void_p(windows.must("CreateJobObject", windows.kernel.CreateJobObjectW(None, None)))
    limits = JobLimits(flags=JOB_LIMIT_FLAGS, active_processes=plan["processes"], job_memory=plan["memory_bytes"])
    done = windows.kernel.SetInformationJobObject(job, JOB_EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits))
    windows.must("SetInformationJobObject", done)
    return job


def start(windows: Windows, plan: dict[str, Any], attributes: Any) -> ProcessInformation:
    """Starts the guest suspended: it must be in the job before its first instruction."""
    handles = [windows.kernel.GetStdHandle(ctypes.c_uint32(number & 0xFFFFFFFF)) for number in (-10, -11, -12)]
    startup = StartupInfo(
        size=ctypes.sizeof(StartupInfo),
        flags=START_USES_HANDLES,
        stdin=handles[0],
        stdout=handles[1],
        stderr=handles[2],
    )
    startup.attributes = ctypes.cast(attributes, ctypes.c_void_p)
    line = ctypes.create_unicode_buffer(plan["command_line"])
    environment = ctypes.create_unicode_buffer(plan["environment"])
    process = ProcessInformation()
    created = windows.kernel.CreateProcessW(
        None, line, None, None, True, CREATE_FLAGS, environment, None, ctypes.byref(startup), ctypes.byref(process)
    )
    windows.must("CreateProcess", created)
    return process


def run(plan: dict[str, Any]) -> int:
    """Runs the guest, removes everything that was created for it, and returns its exit status."""
    windows = Windows()
    capabilities = capability_array(windows, plan["capabilities"])
    count = len(plan["capabilities"])
    with ExitStack() as stack:
        sid = stack.enter_context(profile_sid(windows, plan["profile"], capabilities, count))
        for grant in plan["grants"]:
            stack.enter_context(grant_access(windows, grant, sid))
        security = SecurityCapabilities(sid.value, capabilities, count, 0)
        policy = None if plan["allow_children"] else ctypes.c_uint32(CHILD_PROCESS_RESTRICTED)
        job = make_job(windows, plan)
        process = start(windows, plan, attribute_list(windows, security, policy))
        return wait(windows, job, process)


def wait(windows: Windows, job: ctypes.c_void_p, process: ProcessInformation) -> int:
    handle = ctypes.c_void_p(process.process)
    if not windows.kernel.AssignProcessToJobObject(job, handle):
        windows.kernel.TerminateProcess(handle, 1)
        raise WindowsError("the guest could not be put into its job")
    windows.kernel.ResumeThread(ctypes.c_void_p(process.thread))
    windows.kernel.WaitForSingleObject(handle, ctypes.c_uint32(0xFFFFFFFF))
    status = ctypes.c_uint32()
    windows.must("GetExitCodeProcess", windows.kernel.GetExitCodeProcess(handle, ctypes.byref(status)))
    windows.kernel.TerminateJobObject(job, 1)
    return int(status.value)


def probe_host(plan: Any) -> str | None:
    """Runs the plan's command, which Windows must refuse. Returns the problem, if there is one."""
    try:
        status = run(json.loads(plan.to_json()))
    except (WindowsError, KeyError) as error:
        return f"containers do not work here: {error}"
    return "a container could list the user's own directory" if status == 0 else None


if __name__ == "__main__":
    try:
        sys.exit(run(json.loads(sys.argv[1])))
    except WindowsError as problem:
        print(f"warmcell: appcontainer: {problem}", file=sys.stderr)
        sys.exit(125)
