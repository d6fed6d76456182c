-- How much energy did each GPU use while no run was on it?
SELECT host, index, gpu, idle_gpus.energy_j, duration_s, 100 * share AS percent
FROM idle_gpus JOIN gpus USING (gpu, host) ORDER BY energy_j DESC;
