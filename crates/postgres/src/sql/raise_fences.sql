-- Raises the sequence of fences to the wall clock, for the case that the clock steps back later. A
-- concurrent raise may be overwritten by this one, which is some microseconds older: the next one
-- makes up for it.
SELECT setval({fences_text}, clock)
FROM (SELECT {draw} AS drawn, {micros} AS clock) AS next
WHERE clock > drawn
