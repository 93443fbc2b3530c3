// A grid has two dimensions, since a device may take no more than 65,535 blocks in one.
// No shader has a loop over blocks instead: Mesa's llvmpipe ends all loops of an item
// after 65,535 turns together, and so gives wrong numbers.

layout(local_size_x_id = 0) in;

// blockNumber is where the block is in the grid, row by row.
uint blockNumber() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }

// itemNumber counts the items of all blocks.
uint itemNumber() { return blockNumber() * gl_WorkGroupSize.x + gl_LocalInvocationID.x; }
