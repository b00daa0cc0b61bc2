"""CANN on host memory: what the real torch_npu and vllm-ascend need to run where there is no NPU.

The package is libraries (`lib/`, built from C++ for the torch_npu that is installed) and the
environment in which a command finds them:

    machine = EmulatedMachine(devices=2, soc="910b3")
    os.execvpe(command[0], command, machine.environment(os.environ))

It proves what runs and that results are right. It says nothing about speed, about the precision of
the real cores, or about drivers.
"""

from tunan_emulator.machine import EmulatedMachine
from tunan_emulator.settings_error import SettingsError

__all__ = ["EmulatedMachine", "SettingsError"]
