// Which program the sums of a block take where the exponent of a power is a parameter: the one for any exponent, those
// of 1 and 2, or that of tables (power_table.cuh).
#pragma once

enum { POWER_ANY, POWER_ONE, POWER_TWO, POWER_TABLE };
