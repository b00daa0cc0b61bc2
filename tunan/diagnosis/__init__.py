"""What logs say went wrong, and what to do: needs neither torch nor an engine.

diagnose([Path("engine.log")])           the cause among all that the logs say
remedy_for(diagnosis, deployment)        a change that the supervisor may make by itself
"""

from tunan.diagnosis.diagnose import Diagnosis, diagnose, diagnose_streams
from tunan.diagnosis.remedy import Floors, Remedy, remedy_for

__all__ = ["Diagnosis", "Floors", "Remedy", "diagnose", "diagnose_streams", "remedy_for"]
