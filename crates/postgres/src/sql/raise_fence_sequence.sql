-- Raises the sequence of fences to the wall clock, in case the clock steps back later. It may
-- overwrite a concurrent raise that is some microseconds newer, which the next raise corrects.
SELECT setval({fences_text}, clock)
FROM (SELECT {draw} AS drawn, {micros} AS clock) AS next
WHERE clock > drawn
