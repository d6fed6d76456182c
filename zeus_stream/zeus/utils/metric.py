"""`zeus_cost`: the cost that weighs energy against time, with Zeus's name. Pure."""


def zeus_cost(energy: float, time: float, eta_knob: float, max_power: float) -> float:
    """Return eta * energy + (1 - eta) * MAXPOWER * time, J, of J, s, and W of all GPUs of the job."""
    return eta_knob * energy + (1 - eta_knob) * max_power * time
