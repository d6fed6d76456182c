-- What did each epoch cost, and how well is it known?
SELECT run, epoch, began_at, duration_s, energy_j, energy_j / duration_s AS average_power_w,
    50 * (energy_p97_5_j - energy_p2_5_j) / energy_j AS give_or_take_percent, power_limit_w, quality
FROM epochs ORDER BY began_at;
