-- Where does the energy of a whole host go? (It needs a meter: docs/how-to/whole-host.md.)
SELECT host, began_at, wall_j / covered_s AS wall_w, gpu_j / covered_s AS gpu_w, cpu_j / covered_s AS cpu_w,
    memory_j / covered_s AS memory_w, rest_j / covered_s AS rest_w, rest_within_j / covered_s AS rest_within_w,
    wall_per_gpu
FROM balance ORDER BY host, began_at;
