// A group works on one row. Item n takes the elements n, n + items, n + 2 items
// and so on, in this order; what the items have is put together in the order of the
// items. So neither padding nor other rows change a result (SPEC E8).
const uint items = gl_WorkGroupSize.x;
shared float each[items];

// gathered makes the value of each item known to all of the group. All have to call it.
void gathered(float mine) {
	barrier(); // what was gathered before has been read
	each[gl_LocalInvocationID.x] = mine;
	barrier();
}

// total is the sum of all items' values.
float total(float mine) {
	gathered(mine);
	precise float sum = each[0];
	for (uint i = 1u; i < items; i++) {
		sum += each[i];
	}
	return sum;
}

// largest is the largest of all items' values.
float largest(float mine) {
	gathered(mine);
	float most = each[0];
	for (uint i = 1u; i < items; i++) {
		most = max(most, each[i]);
	}
	return most;
}
