"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A loaded machine that stands still for a second is no finding.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
