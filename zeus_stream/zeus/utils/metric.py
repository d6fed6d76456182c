"""`zeus_cost`: the cost that weighs energy against time, with Zeus's name. Pure."""


def zeus_cost(energy: float, time: float, eta_knob: float, max_power: float) -> float:
    """Return eta * energy + (1 - eta) * MAXPOWER * time, J.

    Args:
        energy: J.
        time: s.
        eta_knob: from 0, time only, to 1, energy only.
        max_power: of all GPUs of the job, W.
    """
    return eta_knob * energy + (1 - eta_knob) * max_power * time
