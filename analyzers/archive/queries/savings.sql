-- What has the chosen power limit saved, and at what price in time?
SELECT run, job, default_limit_w, power_limit_w, energy_saved_percent, time_added_percent,
    steps_at_limit, saved_j, applied
FROM savings ORDER BY saved_j DESC;
