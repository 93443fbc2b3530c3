/* Calls Where of a library that it was linked with. */
void Where(void);

int main(void)
{
	Where();
	return 0;
}
