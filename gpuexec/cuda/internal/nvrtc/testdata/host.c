/* A program that has a server's socket, and compiles: host COMPILER default|ignore|nowait|reap */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void Compile(char *path);

static void *reap(void *unused)
{
	for (;;)
		if (waitpid(-1, NULL, 0) < 0)
			usleep(100);
	return unused;
}

static int serve(struct sockaddr_in *at)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);
	return bind(s, (struct sockaddr *)at, sizeof *at) == 0 && listen(s, 1) == 0 ? s : -1;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at;
	struct sigaction a;
	socklen_t size = sizeof at;
	pthread_t thread;
	int s;
	if (argc != 3)
		return 2;
	memset(&at, 0, sizeof at);
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	s = serve(&at);
	if (s < 0 || getsockname(s, (struct sockaddr *)&at, &size) != 0)
		return 3;
	memset(&a, 0, sizeof a);
	if (strcmp(argv[2], "ignore") == 0)
		a.sa_handler = SIG_IGN;
	if (strcmp(argv[2], "nowait") == 0)
		a.sa_flags = SA_NOCLDWAIT;
	if (sigaction(SIGCHLD, &a, NULL) != 0)
		return 4;
	if (strcmp(argv[2], "reap") == 0 && pthread_create(&thread, NULL, reap, NULL) != 0)
		return 5;
	Compile(argv[1]);
	close(s);
	if (serve(&at) < 0) { /* while the library's process waits for the next compile */
		puts("the socket is still open");
		return 6;
	}
	return 0;
}
