-- What is missing from the archive, and why?
SELECT host, what, reason, count(*) AS gaps, sum(count) AS missing
FROM gaps GROUP BY host, what, reason ORDER BY missing DESC;
