-- What did each epoch cost, and how well is it known?
SELECT run, epoch, began_at, duration_s, energy_j, energy_j / duration_s AS average_power_w,
    100 * (energy_high_j - energy_low_j) / energy_j AS bounds_percent, power_limit_w, quality
FROM epochs ORDER BY began_at;
