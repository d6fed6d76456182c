"""Real-time priority, for what must not wait until a busy host has time for it."""

import os


def take_real_time_priority() -> None:
    """Give this thread real-time priority (SCHED_RR), for short turns. Its child processes have none."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return  # without the privilege, or where the system has no such priority, it is as all others
