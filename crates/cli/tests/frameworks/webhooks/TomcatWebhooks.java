import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.catalina.Context;
import org.apache.catalina.startup.Tomcat;

/** A servlet on Tomcat, whose files lie in a folder that is named. GET /hits says how often it ran. */
public class TomcatWebhooks {
    static final AtomicLong hits = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(arguments[0]);
        tomcat.setSilent(true);
        tomcat.setPort(0);
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        Context context = tomcat.addContext("", null);
        add(tomcat, context, "handler", "/webhooks/stripe", new HttpServlet() {
            @Override
            protected void doPost(HttpServletRequest request, HttpServletResponse response)
                    throws IOException {
                hits.incrementAndGet();
                response.getWriter().print("handled");
            }
        });
        add(tomcat, context, "count", "/hits", new HttpServlet() {
            @Override
            protected void doGet(HttpServletRequest request, HttpServletResponse response)
                    throws IOException {
                response.getWriter().print(hits.get());
            }
        });
        tomcat.start();
        System.err.println("running on http://127.0.0.1:" + tomcat.getConnector().getLocalPort());
        tomcat.getServer().await();
    }

    static void add(Tomcat tomcat, Context context, String name, String path, HttpServlet servlet) {
        Tomcat.addServlet(context, name, servlet);
        context.addServletMappingDecoded(path, name);
    }
}
