"""Power limits and clocks: leases, restore records, the watchdog."""
